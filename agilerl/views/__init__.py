"""Views of a run and what leaves it: report, live page, film, exports, the model hub."""
