"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock.

The public names are those of its modules.
"""

from ..run import Observation as Observation
from ..run import observe as observe
from .baseline import *
from .cause import *
from .review import *
from .structure import *
from .time_verdict import *
from .timing import *
from .two_sets import *
from .verdict import *
