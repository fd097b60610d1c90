"""Values and strict parsers.

Each module parses external text into immutable values, or formats values as text. No module reads a file, a
clock or the environment. Input is untrusted: a parser checks the size of its input before it expands it, and
raises a subclass of `penstock.errors.BadRequest` with the position, the value found and the value expected.
Nothing is re-exported; import the module.
"""
