"""`python -m refusion` is the command `refusion`."""

from .cli import main

raise SystemExit(main())
