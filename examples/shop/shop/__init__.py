"""A shop of six services that pass messages through pymq, and stay right when things break.

What imports what, from the inside out; a service never imports another service::

    money  errors  faults  settings        values, and what may go wrong
    database  columns                      transactions as functions; columns that tables share
    steps  outbox  consuming  calls        the four means that keep services consistent
    signature  topics
    goods  coupons  users  orders  payments  journal        the services
    web  serving  migrate  relay           their processes
    audit  platform  story  page  figures  what watches them from the outside; figures by Spark

Each service is a package: ``tables`` (rows), ``service`` (routes and consumers), and ``__main__``,
so that ``python -m shop.orders --broker 127.0.0.1:9876`` starts it.
"""
