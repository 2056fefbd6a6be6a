"""The word lists behind the captions: synonyms of what is drawn, and words for what cannot be drawn."""

OBJECT_NAMES: dict[str, tuple[str, ...]] = {
    "ball": ("ball", "ball", "round ball"),
    "box": ("box", "box", "crate"),
    "tent": ("tent", "camping tent"),
    "star": ("star", "five-pointed star"),
    "heart": ("heart", "heart shape"),
    "tree": ("tree", "pine tree", "tree"),
    "house": ("house", "cottage", "house"),
    "car": ("car", "automobile", "car"),
    "boat": ("boat", "sailboat", "boat"),
    "fish": ("fish", "fish"),
    "flower": ("flower", "blossom", "flower"),
    "mug": ("mug", "cup", "coffee mug"),
    "kite": ("kite", "kite"),
    "balloon": ("balloon", "balloon"),
    "umbrella": ("umbrella", "parasol"),
    "mushroom": ("mushroom", "toadstool"),
    "chair": ("chair", "wooden chair", "chair"),
    "bottle": ("bottle", "glass bottle", "bottle"),
    "crown": ("crown", "royal crown", "crown"),
    "ladder": ("ladder", "step ladder", "ladder"),
}
PLURALS: dict[str, str] = {
    "box": "boxes", "fish": "fishes", "ball": "balls", "tent": "tents", "star": "stars", "heart": "hearts",
    "tree": "trees", "house": "houses", "car": "cars", "boat": "boats", "flower": "flowers", "mug": "mugs",
    "kite": "kites", "balloon": "balloons", "umbrella": "umbrellas", "mushroom": "mushrooms",
    "chair": "chairs", "bottle": "bottles", "crown": "crowns", "ladder": "ladders",
}  # fmt: skip
COLOUR_NAMES: dict[str, tuple[str, ...]] = {
    "red": ("red", "red", "crimson"),
    "orange": ("orange", "orange", "bright orange"),
    "yellow": ("yellow", "yellow", "golden"),
    "green": ("green", "green", "emerald"),
    "blue": ("blue", "blue", "royal blue"),
    "purple": ("purple", "purple", "violet"),
    "pink": ("pink", "pink", "rosy"),
    "brown": ("brown", "brown", "chestnut"),
    "black": ("black", "black", "jet black"),
    "white": ("white", "white", "snow white"),
}
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "medium": ("", "", "medium sized"),
    "large": ("large", "big", "huge"),
}
PLACES: dict[str, tuple[str, ...]] = {
    "grass": ("on the grass", "in a green meadow", "on a lawn", "in a grassy field"),
    "beach": ("on the beach", "on a sandy beach", "by the seaside", "on the sand by the water"),
    "night": ("at night", "under the moon", "under a dark starry sky", "in the dark"),
    "snow": ("in the snow", "on a snowy day", "on white snow", "in winter snow"),
    "room": ("in a room", "on a wooden floor", "inside a house", "in a room with a window"),
    "sea": ("in the sea", "on the ocean", "on the water", "among the waves"),
    "desert": ("in the desert", "among sand dunes", "on hot desert sand", "in a dry desert"),
    "street": ("in the street", "on a city road", "in a town street", "on the road"),
    "forest": ("in the forest", "among the tree trunks", "in the dark woods", "in a deep forest"),
    "mountains": ("in the mountains", "near the mountain peaks", "below snowy peaks", "in a mountain valley"),
}
DETAILS: dict[str, tuple[str, ...]] = {
    "grass": ("under a blue sky", "with blades of grass around", "with a clear sky above"),
    "beach": ("with blue water behind", "with a white line of foam behind", "and the sea in the background"),
    "night": ("with a yellow moon in the sky", "with small stars above", "and a round moon above"),
    "snow": ("with snowflakes falling", "under a grey sky", "and white flakes in the air"),
    "room": ("with a window on the wall", "in front of a plain wall", "and brown floor boards below"),
    "sea": ("with waves all around", "with blue water below", "and a pale sky above"),
    "desert": ("under an orange sky", "with brown dunes behind", "and sand all around"),
    "street": ("with tall buildings behind", "with white lines on the road", "and yellow windows behind"),
    "forest": ("with dark trunks behind", "with brown soil below", "and green leaves behind"),
    "mountains": ("with grey peaks behind", "with snow on the peaks", "and mountains in the background"),
}
MEDIUM_PREFIXES: tuple[str, ...] = (
    "a photo of", "photo of", "an image of", "image of", "a picture of", "picture of", "stock photo of",
    "a photograph of", "an illustration of", "a close up photo of", "stock image of", "a drawing of",
)  # fmt: skip
FLUFF: tuple[str, ...] = (
    "a perfect gift for the {noun} of your {noun2}", "the best way to celebrate {noun}", "for true {adj} {noun}",
    "because {noun} is {adj}", "an offer full of {noun}", "that brings {noun} to your life",
    "with our {adj} guarantee of {noun}", "so {adj} and so {adj2}", "a {adj} idea for {audience}",
    "made with {noun} and {noun2}", "as {adj} as it gets", "you will love the {noun}", "loved by {audience}",
    "the secret of {adj} {noun}",
)  # fmt: skip
ABSTRACT: tuple[str, ...] = (
    "how to {verb} the {adj} {noun} of {noun2}", "the {noun} of {noun2} and {noun3}", "why {noun} is the new {noun2}",
    "{verb} your {noun} with {adj} {noun2}", "a {adj} approach to {noun}", "finding {noun} in {adj} times",
    "the {adj} guide to {noun} for {audience}", "{noun} matters more than {noun2}", "ten ways to {verb} {noun}",
    "our {noun} is your {noun2}", "what {audience} should know about {noun}", "from {noun} to {noun2}",
    "the {adj} future of {noun}", "{verb} {noun} today", "never stop believing in {noun}",
    "a {adj} and {adj2} vision of {noun}", "{noun} without {noun2} is {adj}", "the meaning of {adj} {noun}",
    "we {verb} the {noun} of {audience}", "experience {adj} {noun} like never before",
    "the {noun} behind every {adj} {noun2}", "let {noun} {verb} you", "{adj} {noun} and the art of {noun2}",
    "rethinking {noun} in an age of {noun2}", "is {noun} still {adj}", "a question of {noun}",
    "the hidden {noun} of {adj} {noun2}", "{noun} begins where {noun2} ends", "in search of {adj} {noun}",
    "between {noun} and {noun2}", "toward a theory of {adj} {noun}", "{audience} deserve {adj} {noun}",
)  # fmt: skip
PARTIAL: tuple[str, ...] = (
    "the {obj} of {noun} and {noun2}", "a {obj} as a symbol of {adj} {noun}", "what a {obj} can teach us about {noun}",
    "the {adj} meaning of the {obj}", "{noun} is like a {obj}", "why every {obj} needs {noun}",
    "{verb} your {noun} with a {obj}", "the {obj} and the idea of {adj} {noun}", "a {obj} for {audience}",
    "{adj} {noun} and a {obj}", "the {obj} industry and its {adj} {noun}", "my {obj} gives me {noun}",
    "a history of the {obj} and of {noun}", "no {obj} without {adj} {noun}",
)  # fmt: skip
TAILS: tuple[str, ...] = (
    "for {audience}", "in a world of {noun}", "and the value of {noun}", "with {adj} {noun}", "beyond all {noun}",
    "as a way of life", "and what it means for {audience}", "through {adj} {noun}", "in terms of {noun}",
    "according to {audience}", "at the level of {noun}", "and why it is {adj}", "despite {adj} {noun}",
    "in the light of {noun}", "without any {noun}", "against all {noun}", "for the sake of {noun}",
    "with respect to {adj} {noun}", "in theory and in practice", "now and in the future",
)  # fmt: skip
NOUNS: tuple[str, ...] = tuple(
    ["hope", "freedom", "success", "wisdom", "strategy", "quality", "justice", "truth", "growth", "passion", "innovation", "value", "trust", "identity", "culture", "memory", "courage", "progress", "knowledge", "balance", "destiny", "harmony", "purpose", "reason", "change", "spirit", "ambition", "opinion", "policy", "theory", "attitude", "happiness", "sorrow", "loyalty", "honesty", "tradition", "history", "economy", "efficiency", "logic", "patience", "creativity", "power", "duty", "faith", "inspiration", "motivation", "leadership", "integrity", "excellence", "wellness", "mindset", "potential", "influence", "advice", "meaning", "chance", "risk", "honour", "mystery", "ethics", "virtue", "support", "insight", "belief", "security", "comfort", "pride", "doubt", "regret", "gratitude"]
)
ADJECTIVES: tuple[str, ...] = tuple(
    ["true", "new", "essential", "modern", "timeless", "authentic", "powerful", "relevant", "innovative", "sustainable", "ultimate", "hidden", "personal", "inner", "endless", "possible", "honest", "radical", "global", "digital", "moral", "social", "strategic", "emotional", "creative", "practical", "ideal", "effective", "unique", "serious", "subtle", "pure", "eternal", "complex", "simple", "dynamic", "critical", "free", "sincere", "vital", "proven", "absolute", "collective", "genuine", "amazing", "perfect", "special", "wonderful", "legendary", "rational", "spiritual", "confident", "meaningful", "premium", "exclusive", "official", "general", "abstract", "natural", "formal", "common", "original", "important", "economic", "political"]
)
VERBS: tuple[str, ...] = tuple(
    ["improve", "discover", "embrace", "transform", "inspire", "understand", "achieve", "master", "unlock", "redefine", "explore", "deserve", "trust", "celebrate", "question", "build", "value", "challenge", "restore", "define", "imagine", "change", "protect", "create", "measure", "justify", "accept", "share", "enrich"]
)
AUDIENCES: tuple[str, ...] = (
    "beginners", "experts", "modern families", "young leaders", "everyone", "professionals", "dreamers",
    "investors", "students of life", "busy parents", "creative minds", "our customers", "the community",
    "thinkers", "future generations", "small companies", "believers", "teams", "citizens",
)  # fmt: skip
BOILERPLATE: tuple[str, ...] = (
    "click here to enlarge the image", "image may be subject to copyright", "all rights reserved",
    "img_{number}.jpg", "dsc{number}", "sign up for our newsletter", "terms and conditions apply",
    "free shipping on all orders over {number}", "page {number} of {number2}", "no description available",
    "read more about this item", "untitled document {number}", "default title", "share this post with your friends",
    "posted by admin on day {number2}", "your browser does not support this content", "item number {number}",
    "see the full article for details", "download now", "related products and reviews",
)  # fmt: skip
SALE_WORDS: tuple[str, ...] = tuple(
    ["SALE", "HELLO", "WELCOME", "NEW", "BEST", "FREE", "SPECIAL", "OFFER", "DEAL", "DISCOUNT", "TODAY", "ONLY", "HURRY", "THANKS", "LOVE", "HAPPY", "SUMMER", "WINTER", "PARTY", "MUSIC", "OPEN", "NOW", "SUPER", "BONUS", "WOW", "ENJOY", "GIFT", "VIP", "PRICE", "MEGA"]
)
FOREIGN_OBJECTS: dict[str, dict[str, str]] = {
    "fr": dict(zip(OBJECT_NAMES, ["balle", "boîte", "tente", "étoile", "coeur", "arbre", "maison", "voiture", "bateau", "poisson", "fleur", "tasse", "cerf-volant", "ballon", "parapluie", "champignon", "chaise", "bouteille", "couronne", "échelle"], strict=True)),
    "de": dict(zip(OBJECT_NAMES, ["Ball", "Kiste", "Zelt", "Stern", "Herz", "Baum", "Haus", "Auto", "Boot", "Fisch", "Blume", "Tasse", "Drachen", "Luftballon", "Regenschirm", "Pilz", "Stuhl", "Flasche", "Krone", "Leiter"], strict=True)),
    "es": dict(zip(OBJECT_NAMES, ["pelota", "caja", "tienda", "estrella", "corazón", "árbol", "casa", "coche", "barco", "pez", "flor", "taza", "cometa", "globo", "paraguas", "seta", "silla", "botella", "corona", "escalera"], strict=True)),
}  # fmt: skip
FOREIGN_COLOURS: dict[str, dict[str, str]] = {
    "fr": dict(zip(COLOUR_NAMES, ["rouge", "orange", "jaune", "vert", "bleu", "violet", "rose", "marron", "noir", "blanc"], strict=True)),
    "de": dict(zip(COLOUR_NAMES, ["rot", "orange", "gelb", "grün", "blau", "lila", "rosa", "braun", "schwarz", "weiß"], strict=True)),
    "es": dict(zip(COLOUR_NAMES, ["rojo", "naranja", "amarillo", "verde", "azul", "morado", "rosa", "marrón", "negro", "blanco"], strict=True)),
}  # fmt: skip
FOREIGN_TEMPLATES: dict[str, tuple[str, ...]] = {
    "fr": ("une image avec {obj} en {colour}", "{obj} de couleur {colour} dans le paysage", "voici {obj} {colour}"),
    "de": ("ein Bild mit {obj} in {colour}", "hier steht {obj} in der Farbe {colour}", "{obj} und alles ist {colour}"),
    "es": ("una imagen con {obj} de color {colour}", "aquí está {obj} en {colour}", "{obj} de color {colour} al sol"),
}
