"""Engines that have not run on the device that they are for, or that nothing else needs."""
