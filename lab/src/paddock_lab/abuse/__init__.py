"""Are honest clients served while others attack the server?  `python -m paddock_lab.abuse --seconds 60`

The first phase has honest clients only. In the next phases attackers with their own key send requests that the server
must refuse, bound or queue. Every honest request must be answered, every attack must have one of its expected outcomes,
memory and open files must stay within limits, and no process may die. Otherwise the exit status is 1.
"""
