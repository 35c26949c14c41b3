import warpann

from ..base.module import BaseANN


def found(ids):
    """The ids of a query, best first, without the places that have no neighbour: these come last and are -1."""
    return ids if ids[-1] >= 0 else ids[ids >= 0]


class Warpann(BaseANN):
    """What all indexes have in common."""

    def __init__(self, metric):
        self.metric = {"angular": "cosine", "euclidean": "l2"}[metric]
        self.search_options = {}

    def new_index(self, kind, X, *arguments, **options):
        return kind(X.shape[1], *arguments, metric=self.metric, device="cpu", **options)

    def search(self, queries, n):
        return self.index.search(queries, n, **self.search_options).ids

    def query(self, v, n):
        return found(self.search(v, n))

    def batch_query(self, X, n):
        self.res = self.search(X, n)

    def get_batch_results(self):
        return [found(ids) for ids in self.res]


class Flat(Warpann):
    def fit(self, X):
        self.index = self.new_index(warpann.FlatIndex, X)
        self.index.add(X)

    def __str__(self):
        return "WarpannFlat()"


class Ivf(Warpann):
    def __init__(self, metric, lists, encoding):
        super().__init__(metric)
        self.lists = lists
        self.encoding = encoding

    def fit(self, X):
        self.index = self.new_index(warpann.IvfIndex, X, self.lists, encoding=self.encoding)
        self.index.train(X)
        self.index.add(X)
        self.base = X.astype("float32", copy=False)

    def set_query_arguments(self, probes, refine):
        self.search_options = {"probes": min(probes, self.lists)}
        self.refine = refine

    def search(self, queries, n):
        if self.refine == 0:
            return super().search(queries, n)
        return self.index.search_refined(queries, n, self.base, refine=self.refine, **self.search_options)[0].ids

    def __str__(self):
        return "WarpannIvf(lists=%d, encoding=%s, probes=%d, refine=%d)" % (
            self.lists,
            self.encoding,
            self.search_options["probes"],
            self.refine,
        )


class Graph(Warpann):
    def __init__(self, metric, degree):
        super().__init__(metric)
        self.degree = degree

    def fit(self, X):
        self.index = self.new_index(warpann.GraphIndex, X, degree=self.degree)
        self.index.add(X)

    def set_query_arguments(self, beam):
        self.search_options = {"beam": beam}

    def __str__(self):
        return "WarpannGraph(degree=%d, beam=%d)" % (self.degree, self.search_options["beam"])
