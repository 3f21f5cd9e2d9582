"""Error messages about names: attributes, arguments and imports that a user misspelt or that are elsewhere."""
