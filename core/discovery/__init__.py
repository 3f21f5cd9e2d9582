"""Finding backends: scan (installed metadata only), activation (pluggy, isolated), registry (names), probe (hardware).

Importing this package imports nothing else; each module says what it costs.
"""
