"""Results drawn: one-file pages for the browser, and figures for papers.

Modules named ``…_series`` take from a result what a figure shows, ``…_chart`` draws it with Plotly, ``…_figure`` with
Matplotlib, and ``…_page`` puts a page together. Matplotlib is imported only when something is drawn.
"""
