"""Figure 3, second experiment: 150 samples of one class, 50 of the other. A large tau evens the two classes out.

python examples/fedtilt/toy_2_classes.py [--out FOLDER] [--quick]

Takes about 15 seconds. The paper shows tau = 100; tau = 0 and -1 are beside it for comparison. It does not give lam;
here it is 1. The classes can be separated, so accuracies are equal: what differs is where the boundary lies.
"""

from _toy import figure

if __name__ == "__main__":
    figure(__doc__, "toy-2", 2, [(1.0, -1.0), (1.0, 0.0), (1.0, 100.0)])
