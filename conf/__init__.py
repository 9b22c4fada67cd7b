"""The configuration tree, shipped as ``speedtronic.conf``; it holds no code."""
