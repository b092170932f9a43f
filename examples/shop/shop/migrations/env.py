"""Runs the migrations of one service, on the connection that ``shop.migrate`` hands over."""

from alembic import context

config = context.config
context.configure(
    connection=config.attributes["connection"],
    target_metadata=config.attributes["metadata"],
    version_table=config.attributes["version_table"],
    render_as_batch=True,  # SQLite cannot change most things of a table
)
with context.begin_transaction():
    context.run_migrations()
