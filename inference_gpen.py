"""Restores a portrait: python inference_gpen.py --input ./my_photo.jpg --size 512"""

import sys

from leanface.cli import gpen_main

if __name__ == "__main__":
    sys.exit(gpen_main())
