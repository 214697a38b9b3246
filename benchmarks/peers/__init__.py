"""Other engines' programs beside ours in one run: differential dataflow and DBSP, built here from their crates."""
