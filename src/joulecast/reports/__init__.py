"""Results drawn: one-file pages for the browser, and figures for papers.

Each part imports only from those above it:

- ``numbers``: numbers as people read them; ``palette``: colours by what they stand for.
- ``saved``: results as commands printed them; ``html``: pieces of HTML.
- ``series``: what pictures show, taken from results.
- ``charts``: pictures for the browser; ``figures``: pictures for papers.
- ``page``: one HTML file that holds everything; ``sections``: what several pages have.
- ``pages``: one for each kind of result.
- ``write``: reports as commands write them.
"""
