"""Conversion of many models: jobs, their journal, and the engines that run them."""
