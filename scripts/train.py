"""Train a model: ``python scripts/train.py optimizer.lr=3e-3``; ``--help`` says more."""

from speedtronic.cli import main

main()
