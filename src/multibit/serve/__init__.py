"""The HTTP server of a run and its page. `multibit.serve.app.create_app` makes the application."""
