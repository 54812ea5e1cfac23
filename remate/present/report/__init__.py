"""`remate report`: a page about memory and time of a step. Imports neither torch nor a solver."""

from .frontier import Frontier, frontier
from .page import page

__all__ = ["Frontier", "frontier", "page"]
