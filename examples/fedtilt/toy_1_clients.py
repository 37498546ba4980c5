"""Figure 3, first experiment: two clients with different data, lam = tau = 1. Both are served alike.

python examples/fedtilt/toy_1_clients.py [FOLDER]
"""

from _toy import figure

if __name__ == "__main__":
    figure("toy-1", 1, [(1.0, 1.0)])
