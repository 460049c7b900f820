"""The list of packages: what is in src/, and the folder conf/ and every task in tasks/."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages("src"),
        "vpo_lightning.conf",
        "vpo_lightning.tasks",
        *(f"vpo_lightning.tasks.{name}" for name in find_packages("tasks")),
    ]
)
