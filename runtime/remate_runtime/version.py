"""The one place that states the version, of both packages."""

__version__ = "0.1.0"
