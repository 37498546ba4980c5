"""The evidence of an audit: is a difference real, who is beaten by whom, and what to say of it.

intervals       every number with its 95% interval (resampling seeds and clients)
tests           every method against the baseline, in the words "better", "worse", "no significant difference" and "too
                few seeds to tell"
fronts          which methods are beaten in both of two measures
levelling_down  whether clients became more alike because the best-off lost
headline        all of it in a few sentences
"""

from equipoise.audit.comparing import tests
from equipoise.audit.findings import headline, levelling_down
from equipoise.audit.fronts import fronts
from equipoise.audit.intervals import intervals
from equipoise.audit.resampling import interval

__all__ = ["fronts", "headline", "interval", "intervals", "levelling_down", "tests"]
