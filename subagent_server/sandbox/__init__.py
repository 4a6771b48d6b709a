"""A box of bubblewrap for the programs of a run: what they may read, write and reach. It knows no runs."""
