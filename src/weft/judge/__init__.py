"""A referee for anything that claims to be a language model: its laws, asked of a process that runs a stranger's file.

``worker`` and ``set_clock`` run in the confined process, with ``frames`` between it and ``questions``; ``case`` asks
for distributions; ``normalised``, ``later_tokens``, ``other_rows``, ``repeating``, ``by_steps``, ``text_bytes``,
``own_figures`` and ``seen_text`` hold the laws, ``referee`` runs them. ``endpoint`` asks an endpoint, ``weft_laws``
reads the reports of `weft.laws`; ``judgement`` is the published record of what was found.
"""
