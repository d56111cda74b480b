"""Run files: one pydantic section a module, loaded and checked without torch."""
