"""Small helpers without a subject of their own: files, quantities, printable text, optional packages."""
