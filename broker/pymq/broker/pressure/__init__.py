"""What a broker refuses while it is busy, so that its clients go elsewhere or wait.

``request_classes`` says how much of each kind may wait and how long, ``disk_pressure`` whether the
disk takes writes, ``admission`` refuses accordingly.
"""
