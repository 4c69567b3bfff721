"""Builds, profiles and times workloads. Here is the GPU, and here is the clock."""
