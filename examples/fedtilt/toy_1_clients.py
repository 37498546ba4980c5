"""Figure 3, first experiment: two clients with different data, lam = tau = 1. Both are served alike.

python examples/fedtilt/toy_1_clients.py [--out FOLDER] [--quick]

Takes about 5 seconds. The picture has a panel for each client: its samples, its personal boundary and the global one.
"""

from _toy import figure

if __name__ == "__main__":
    figure(__doc__, "toy-1", 1, [(1.0, 1.0)])
