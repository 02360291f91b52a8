"""The laws: what every language-model part must obey, as a library.

The tests run them on every registered part and on random hybrids; ``weft check`` runs them on a user's configuration
or checkpoint. A law is a function from a `Subject` and a random generator to `Finding`s.
"""

from weft.laws.check import CheckResult, check
from weft.laws.discovery import every_example, subject_of
from weft.laws.faults import Fault
from weft.laws.hybrids import Hybrids
from weft.laws.report import Finding, Report
from weft.laws.run import LAWS, examine, examine_far, examine_long
from weft.laws.subject import Subject, encoder_subject, layer_subject, model_subject

__all__ = ["LAWS", "CheckResult", "Fault", "Finding", "Hybrids", "Report", "Subject", "check",
           "encoder_subject", "every_example", "examine", "examine_far", "examine_long", "layer_subject",
           "model_subject", "subject_of"]
