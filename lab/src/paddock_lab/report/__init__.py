"""A folder for each run: every observation as it comes, then a table, pictures and a page that says what it shows."""

from paddock_lab.report.findings import Cell, Findings, Picture, Table
from paddock_lab.report.recording import Recording, new_folder

__all__ = ["Cell", "Findings", "Picture", "Recording", "Table", "new_folder"]
