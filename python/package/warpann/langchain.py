"""A vector store for LangChain (the package ``langchain-core``)."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from warpann._warpann import FlatIndex, Index, load

__all__ = ["WarpannVectorStore"]

_INDEX, _DOCUMENTS = "index.warpann", "documents.json"
# Scores as numbers from 0 to 1, if vectors have norm 1 under "ip". Squared distances have no greatest one.
_RELEVANCE: dict[str, Callable[[float], float]] = {
    "cosine": lambda score: (1 + score) / 2,
    "ip": lambda score: (1 + score) / 2,
    "l2": lambda score: 1 / (1 + score),
}


class WarpannVectorStore(VectorStore):
    """Documents, and an index of their embeddings.

    Scores are those of the metric: cosines, inner products, or squared distances. The asynchronous methods run the others
    in threads, which search at once. A change that fails leaves the store as it was.

    Args:
        embedding: makes the vectors of texts.
        index: an empty index, which the store owns from now on: of any kind, trained if it is an :class:`IvfIndex`. None
            means a :class:`FlatIndex`, which the first documents make.
        metric: of the index that the store makes: "cosine", "ip" or "l2".
        device: of the index that the store makes.

    Raises:
        ValueError: the index has vectors.
    """

    def __init__(
        self, embedding: Embeddings, index: Index | None = None, *, metric: str = "cosine", device: str = "auto"
    ) -> None:
        if index is not None and len(index) > 0:
            raise ValueError(f"the index has {len(index)} vectors, and a new store no documents")
        self._embedding = embedding
        self._index = index
        self._metric = metric if index is None else index.metric
        self._device = device
        self._documents: dict[int, Document] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._changing = threading.Lock()

    @property
    def embeddings(self) -> Embeddings:
        """The embedding of the store."""
        return self._embedding

    @property
    def index(self) -> Index | None:
        """The index; None until there are documents. Change it by the store only."""
        return self._index

    def __len__(self) -> int:
        return len(self._documents)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_: Any,
    ) -> list[str]:
        """Adds texts, or replaces those whose ids the store has.

        Args:
            texts: the texts.
            metadatas: one for each text; None means none.
            ids: one for each text; None in the place of an id, or of all, means a new id.

        Returns:
            The ids. Of texts with the same id the last one is kept.

        Raises:
            ValueError: another number of metadatas or ids than of texts.
            WarpannError: of the index, such as NotTrained.
        """
        texts = list(texts)
        metadatas = [{} for _ in texts] if metadatas is None else metadatas
        given: Sequence[str | None] = [None] * len(texts) if ids is None else ids
        for name, values in (("metadatas", metadatas), ("ids", given)):
            if len(values) != len(texts):
                raise ValueError(f"{len(values)} {name} for {len(texts)} texts")
        all_ids = [id or str(uuid.uuid4()) for id in given]
        if not texts:
            return []
        vectors = np.asarray(self._embedding.embed_documents(texts), dtype=np.float32)
        last = {id: row for row, id in enumerate(all_ids)}
        with self._changing:
            fresh = iter(range(self._next, self._next + len(last)))
            numbers = [self._numbers[id] if id in self._numbers else next(fresh) for id in last]
            index = self._index
            if index is None:
                index = FlatIndex(vectors.shape[1], metric=self._metric, device=self._device)
            index.upsert(vectors[list(last.values())], numbers)
            self._index, self._next = index, next(fresh, self._next + len(last))
            for (id, row), number in zip(last.items(), numbers, strict=True):
                self._documents[number] = Document(id=id, page_content=texts[row], metadata=dict(metadatas[row]))
                self._numbers[id] = number
        return all_ids

    def delete(self, ids: list[str] | None = None, **_: Any) -> bool:
        """Deletes documents.

        Args:
            ids: those to delete, whether the store has them or not; None means all.
        """
        with self._changing:
            known = dict.fromkeys(id for id in (list(self._numbers) if ids is None else ids) if id in self._numbers)
            if self._index is not None and known:
                self._index.remove([self._numbers[id] for id in known])
            for id in known:
                del self._documents[self._numbers.pop(id)]
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order; those that the store does not have are left out."""
        numbers = (self._numbers.get(id) for id in ids)
        return [_copy(self._documents[number]) for number in numbers if number in self._documents]

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """The documents nearest to a text; see :meth:`similarity_search_with_score`."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_with_score(self, query: str, k: int = 4, **options: Any) -> list[tuple[Document, float]]:
        """The documents nearest to a text, best first, with their scores.

        Args:
            query: the text.
            k: most documents.
            filter: a function that accepts documents, or metadata that they must have.
            options: others of :meth:`Index.search`, such as ``probes`` and ``beam``.
        """
        return self.similarity_search_with_score_by_vector(self._embedding.embed_query(query), k, **options)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **options: Any) -> list[Document]:
        """As :meth:`similarity_search`, for a vector."""
        return [document for document, _ in self.similarity_search_with_score_by_vector(embedding, k, **options)]

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """As :meth:`similarity_search_with_score`, for a vector."""
        return [(document, score) for document, score, _ in self._search(embedding, k, **options)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """Documents that are near to a text and different from each other.

        Args:
            query: the text.
            k: most documents.
            fetch_k: number of the nearest documents from which they are chosen.
            lambda_mult: 1 chooses the nearest, 0 the most different ones.
            options: as for :meth:`similarity_search_with_score`.
        """
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **options)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """As :meth:`max_marginal_relevance_search`, for a vector."""
        found = self._search(embedding, fetch_k, **options)
        if not found or self._index is None:
            return []
        vectors = list(self._index.reconstruct([number for _, _, number in found]))
        chosen = maximal_marginal_relevance(np.asarray(embedding, dtype=np.float32), vectors, lambda_mult, k)
        return [found[place][0] for place in chosen]

    def _search(
        self,
        embedding: list[float],
        k: int,
        *,
        filter: Callable[[Document], bool] | dict[str, Any] | None = None,
        **options: Any,
    ) -> list[tuple[Document, float, int]]:
        """Documents, their scores, and their numbers in the index."""
        if self._index is None or not self._documents:
            return []
        if filter is not None:
            accepts = filter if callable(filter) else _has(filter)
            options["filter"] = [number for number, document in list(self._documents.items()) if accepts(document)]
        scores, numbers = self._index.search(np.asarray(embedding, dtype=np.float32), k, **options)
        # A document may have gone since the search.
        found = ((self._documents.get(number), score, number) for number, score in zip(numbers.tolist(), scores.tolist()))
        return [(_copy(document), score, number) for document, score, number in found if document is not None]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return _RELEVANCE[self._metric]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **settings: Any,
    ) -> WarpannVectorStore:
        """A store with these texts; ``settings`` are those of the class."""
        store = cls(embedding, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def save_local(self, folder: str | os.PathLike[str]) -> None:
        """Saves the store: the index, and beside it the documents with their metadata as JSON.

        Args:
            folder: is made if there is none. Files of an earlier store in it are replaced.

        Raises:
            TypeError: metadata that JSON cannot hold. Nothing is written then.
            OSError, WarpannError.
        """
        folder = Path(folder)
        with self._changing:
            rows = [[number, document.id, document.page_content, document.metadata] for number, document in self._documents.items()]
            text = json.dumps({"metric": self._metric, "next": self._next, "documents": rows})
            folder.mkdir(parents=True, exist_ok=True)
            if self._index is None:
                (folder / _INDEX).unlink(missing_ok=True)
            else:
                self._index.save(folder / _INDEX)
            part = folder / f"{_DOCUMENTS}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(folder / _DOCUMENTS)

    @classmethod
    def load_local(
        cls, folder: str | os.PathLike[str], embedding: Embeddings, *, device: str = "auto"
    ) -> WarpannVectorStore:
        """Opens a store that :meth:`save_local` wrote.

        Raises:
            ValueError: the documents are not those of the index, or damaged.
            OSError, WarpannError.
        """
        folder = Path(folder)
        try:
            saved = json.loads((folder / _DOCUMENTS).read_text(encoding="utf-8"))
            store = cls(embedding, metric=saved["metric"], device=device)
            store._next = int(saved["next"])
            for number, id, text, metadata in saved["documents"]:
                store._documents[int(number)] = Document(id=id, page_content=text, metadata=metadata)
                store._numbers[id] = int(number)
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{folder / _DOCUMENTS} is damaged: {error!r}") from error
        if (folder / _INDEX).exists():
            store._index = load(folder / _INDEX, device=device)
        numbers = [] if store._index is None else store._index.ids().tolist()
        if numbers != sorted(store._documents) or len(store._numbers) != len(numbers) or store._next <= max(numbers, default=-1):
            raise ValueError(f"{folder / _DOCUMENTS} has not the documents of the index beside it")
        return store


def _copy(document: Document) -> Document:
    """A document that the caller may change."""
    return Document(id=document.id, page_content=document.page_content, metadata=dict(document.metadata))


def _has(metadata: dict[str, Any]) -> Callable[[Document], bool]:
    missing = object()
    return lambda document: all(document.metadata.get(key, missing) == value for key, value in metadata.items())
