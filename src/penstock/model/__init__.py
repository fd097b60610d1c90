"""Values and strict parsers, nothing else.

Every module here turns outside text into immutable values, or values into text. Nothing reads a
file, a clock or the environment. Input is hostile until parsed: each parser bounds what it reads
before it expands it, and raises a subclass of `penstock.errors.BadRequest` that says where, what
was found and what was expected. Import the module that is needed; nothing is re-exported.
"""
