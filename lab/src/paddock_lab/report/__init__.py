"""The report of a run, in a folder: raw observations, a table, charts and a web page."""

from paddock_lab.report.findings import Cell, Findings, Picture, Table
from paddock_lab.report.recording import Recording, new_folder

__all__ = ["Cell", "Findings", "Picture", "Recording", "Table", "new_folder"]
