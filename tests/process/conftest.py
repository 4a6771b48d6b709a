"""A world of its own for each test, and a zygote for those that ask for one."""

from tests.helpers.warm_places import place, shared_directory, shared_place

__all__ = ["place", "shared_directory", "shared_place"]
