"""Figure 3, third experiment: one class is noisy and has outliers. A negative lam looks past them, a positive one does
what they want.

python examples/fedtilt/toy_3_outliers.py [--out FOLDER] [--quick]

Takes about 20 seconds. The paper shows lam = -100 and a positive lam; it gives neither that one nor tau, which is 1
here. A gentle lam = -1 does better than -100, which listens to the easiest sample of each class alone; lam = 100
listens to the hardest, and gives one of the classes up (`docs/results/fedtilt-toy.md` says why it must).
"""

from _toy import figure

if __name__ == "__main__":
    figure(__doc__, "toy-3", 3, [(-100.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (100.0, 1.0)])
