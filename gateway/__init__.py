"""An async HTTP gateway in front of the engine, in the dialects that clients speak."""
