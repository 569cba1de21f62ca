"""Are honest clients served while others attack the server?  `python -m paddock_lab.abuse --seconds 60`

First a calm phase, then a storm: attackers with a key of their own send what the server must refuse, bound or queue.
Every honest request must be answered, every attack must end as its family says, memory and open files stay within
bounds, and no process may die. The exit status tells.

One file per family of attacks, each with a tuple `ATTACKS`; `families.py` lists them. `attack.py` is what they share.
"""
