"""Many files: which there are, where their results go, and one outcome for each."""

from leanface.batch.journal import Journal
from leanface.batch.naming import SUFFIX, Job, distinct, expand, jobs, plan, shard, with_crops
from leanface.batch.running import Outcome, preview, run

__all__ = [
    "SUFFIX",
    "Job",
    "Journal",
    "Outcome",
    "distinct",
    "expand",
    "jobs",
    "plan",
    "preview",
    "run",
    "shard",
    "with_crops",
]
