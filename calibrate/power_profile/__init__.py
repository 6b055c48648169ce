"""Fine-grain power profiles of one kernel or of kernels in turn.

- ``protocol``: what a profile is made of; ``kernels``: which are profiled; ``guidance`` and ``budget``: how many runs.
- ``open_bench``: where they run: ``card_bench`` (a simulated card) or ``torch_bench``.
- ``campaign``: takes the runs; ``poller`` reads power meanwhile; ``clocks``: the card's clock over the host's;
  ``steady``: when both have settled; ``search``: runs of one length.
- ``learn``: how a ``sensor`` works; ``readings``: what it said.
- ``dataset``: everything recorded, and which runs are golden; ``outliers``: the others; ``stitch``: their readings in
  one line; ``bins``: how finely; ``layout``: the powers to find.
- ``response``: readings as means of the power, and how badly that explains them; ``inverse``: the power behind them;
  ``trend`` and ``resolve``: what of it is told apart.
- ``analysis``: all of it together; ``evaluate``: the ``result``; ``report``: its files.
"""
