"""``torch-hal doctor``: one page for a bug report: what is installed, what is there, and what is wrong with it."""
