"""Speedtronic: run_folder."""
