"""Where the groups are kept, and who of several controllers leads: ``interface`` says what that is.

``file_store`` is for one process on one machine, ``etcd_store`` for any number of them.
"""
