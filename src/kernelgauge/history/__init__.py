"""What many runs found: files in a folder or a bucket, and how workloads changed over them."""

from .store import Added, SetAside, add_to_history, whole_entries

__all__ = ["Added", "SetAside", "add_to_history", "whole_entries"]
