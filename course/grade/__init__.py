"""Grading of a class: `course grade SUBMISSIONS` runs every submission's labs in a sandbox and reports.

``intake`` takes the ``starter.py`` files out of folders, zips and bundles; ``clean`` makes a copy of the course
without solutions; ``faults`` finds in a file what stands outside the small ``language``; ``server`` runs one lab's
tests on all submissions, each in a ``fork``, test by test as ``proofs`` sends them; ``watch`` and ``kernel`` bound what
a fork may do; ``grading`` turns outcomes into points; ``similarity`` compares submissions; ``report`` writes."""
