import numpy as np
from usearch.index import Index

from ..base.module import BaseANN


class USearch(BaseANN):
    def __init__(self, metric, connectivity, expansion_add):
        self.metric = {"euclidean": "l2sq", "cosine": "cos", "ip": "ip", "normalized": "ip"}[metric]
        self.connectivity = connectivity
        self.expansion_add = expansion_add

    def fit(self, X):
        self.index = Index(
            ndim=X.shape[1],
            metric=self.metric,
            dtype="f32",
            connectivity=self.connectivity,
            expansion_add=self.expansion_add,
        )
        self.index.add(np.arange(len(X)), X)

    def set_query_arguments(self, expansion_search):
        self.index.expansion_search = expansion_search

    def query(self, v, n):
        return self.index.search(v, n, threads=1).keys.astype(np.int64)

    def __str__(self):
        return "USearch(connectivity=%d, expansion_add=%d, expansion_search=%d)" % (
            self.connectivity,
            self.expansion_add,
            self.index.expansion_search,
        )
