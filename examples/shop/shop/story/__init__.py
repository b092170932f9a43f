"""The story: a broker, all services, customers, faults, and an audit at the end.

``python -m shop.story --orders 1000`` tells it. ``processes`` starts and kills what runs, ``town``
is all of it together, ``customers`` place orders, ``havoc`` breaks things.
"""
