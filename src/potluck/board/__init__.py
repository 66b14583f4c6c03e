"""The live board: one page that shows the runs of a folder and follows those that go on. It reads run folders only."""
