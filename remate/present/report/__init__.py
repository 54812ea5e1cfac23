"""`remate report`: one page that shows where memory and time of a step go. Loads neither torch nor a solver."""

from .frontier import Frontier, frontier
from .page import page

__all__ = ["Frontier", "frontier", "page"]
